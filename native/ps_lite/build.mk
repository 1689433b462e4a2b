# Read by ps-lite's Makefile before anything else (its variable "config").
.DEFAULT_GOAL := all
OURS := $(dir $(lastword $(MAKEFILE_LIST)))

build/van.o: ADD_CFLAGS += -include $(OURS)zmq_van.h

build/customer.o: $(OURS)customer.cc
	mkdir -p $(@D)
	$(CXX) $(CFLAGS) -c $< -o $@
