"""``python -m loadtest.same_texts``: checks that two builds, or two sets of kernels, generate the same texts.

Different kernels add up the same products in different orders. So two tokens with nearly equal logits may
change places, and the texts differ from there on. Any other difference is an error in one of the builds.
"""
