"""Frames as steps read and write them: inputs, anchors, staged rows, what is withheld."""
