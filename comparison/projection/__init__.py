"""Throughput and efficiency on many GPUs, predicted: compare.py --project.

command     its options, checked, and the sequence of a projection
workload    a model's gradients, and the time when each is ready; compute time from a comparison's report
clusters    parameters of clusters, with sources
model       rings and BytePS, with their queues simulated, and the time of a step on n GPUs
validation  measurements of others, with sources, some of them held out, and the model's errors on them
crossover   from how many servers on BytePS is faster than Horovod: search, table and picture
report      the text, the files, the errors as tables, and the pictures
pipelines        the time of a step with layers on several GPUs
pipeline_report  measurements of others, the model's errors on them, and the text and the files
"""
