"""Write a pipeline for an existing PySpark job, which is read and never run.

``reading`` parses the file, and knows the text of each part and the calls that read or write.
``flow`` passes once over the statements in the order in which they run. A function that reads or
writes is followed in the place of its call. The result is one list of statements, each with the
values that it uses and assigns, and a list of writes. ``steps`` goes back from each write to its
reads and divides the statements on the way into stages. ``writing`` writes the module, with
``declarations`` of sources and sinks.

What cannot be followed becomes a line of what is left to do.
"""
