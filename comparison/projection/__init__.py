"""Throughput and efficiency on many GPUs, predicted: compare.py --project.

options     the table of its options
command     these, checked, and the sequence of a projection
workload    a model's gradients, and the time when each is ready; compute time from a comparison's report
clusters    parameters of clusters, with sources
servers     the exchange of BytePS's workers and servers, with the links that they share
model       rings and BytePS, with their queues simulated, and the time of a step on n GPUs
validation  measurements of others, with sources, the model's errors on them, and these as tables
report      the text, the files and the two pictures
pipelines        the time of a step with layers on several GPUs
pipeline_report  measurements of others, the model's errors on them, and the text and the files
"""
