"""The HTTP routes: each module makes a blueprint from the process's parts."""
