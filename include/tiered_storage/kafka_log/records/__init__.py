"""Record batches of magic 2: header, records, control records, codecs.

`batch_table` holds the headers of many batches as columns, `segment_scan` fills it from a segment. Nothing here opens
a file by its name.
"""
