"""Frames as steps read and write them: inputs, anchors, staged and withheld rows."""
