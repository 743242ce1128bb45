"""Carry anchors through functions that do not know of them, by rewriting Spark's analyzed plans.

``carry`` calls a function with ordinary frames and returns its output with the records of each
row. ``Carrier`` rewrites one plan. Prior art: the rewriting of Perm and GProM, which add provenance
columns to each operator of an algebra tree and fail on any other operator.
"""
