"""Throughput and efficiency on many GPUs, predicted: compare.py --project.

command     the options, checked, and the sequence of a projection
workload    a model's gradients, and the time when each is ready
measured    compute time from a comparison's report
clusters    parameters of clusters, with sources
strategies  rings and BytePS, with their queues simulated
model       the time of a step on n GPUs
published   measurements of others, with sources
validation  the model's errors on them, and these as tables
report      the text and the files
plot        the two pictures
pipelines            the time of a step with layers on several GPUs
published_pipelines  measurements of others, and the model's errors on them
pipeline_report      the text and the files of pipelines
"""
