"""The pure core: states and verdicts, and the words that everything else shares. Standard
library only.
"""
