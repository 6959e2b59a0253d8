"""One clock for all: offsets and drift between processes, devices and hosts, each with its error.

host      ticks of a process -> the clock of its host          device    events of a GPU -> the same
meetings  what two hosts did together -> limits                offset    limits of a pair -> offset, drift, error
hosts     offsets of pairs -> one clock for all hosts          align     the whole of it, for a run; foreign: for files
"""
