"""Throughput and efficiency on many GPUs, predicted: compare.py --project.

options     the table of its options
command     these, checked, and the sequence of a projection
workload    a model's gradients, and the time when each is ready; compute time from a comparison's report
clusters    parameters of clusters, with sources
servers     the exchange of BytePS's workers and servers, with the links that they share
model       rings and BytePS, with their queues simulated, and the time of a step on n GPUs
validation  measurements of others, with sources, the model's errors on them, and these as tables
further     later measurements, half of them held out, and the errors on them as tables
crossover   from how many servers on BytePS is faster than Horovod: search, table and picture
report      the text, the files and the pictures
pipelines        the time of a step with layers on several GPUs
pipeline_report  measurements of others, the model's errors on them, and the text and the files
"""
