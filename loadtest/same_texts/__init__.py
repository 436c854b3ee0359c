"""``python -m loadtest.same_texts``: do two builds, or two sets of kernels, generate the same texts?

Kernels add up the same products in another order, so that two tokens with nearly equal logits may change
places, and the texts go apart from there. Anything else is an error of one of the two.
"""
