package driver

import (
	"fmt"
	"os"
	"strings"
	"unsafe"
)

// Sharing says how this process shares a GPU with others.
type Sharing struct {
	// UUID names the GPU, or its MIG instance, as nvidia-smi -L does and CUDA_VISIBLE_DEVICES takes it.
	UUID string
	// MIG reports whether this is an instance of a GPU: its memory and multiprocessors are its own.
	MIG bool
	// MPS reports whether the process's work goes through NVIDIA's MPS daemon.
	MPS bool
	// Threads is the share of the multiprocessors that MPS gives the process, in percent; "": all. Memory is the limit
	// that MPS sets on its memory; "": none.
	Threads, Memory string
}

// String describes the sharing for people, without the UUID; "": the GPU is not divided.
func (s *Sharing) String() string {
	var all []string
	if s.MIG {
		all = append(all, "MIG instance")
	}
	if s.MPS {
		share := "MPS"
		if s.Threads != "" {
			share += " with " + s.Threads + " % of the multiprocessors"
		}
		if s.Memory != "" {
			share += ", memory limit " + s.Memory
		}
		all = append(all, share)
	}
	return strings.Join(all, ", ")
}

// attrMPS says whether contexts are shared through MPS, on drivers that know it.
const attrMPS = 133

// share finds out how the GPU is shared. What a driver does not tell is left out.
func (c *Context) share() (s Sharing) {
	s.MIG = strings.Contains(c.info.Name, " MIG ")
	var id [16]byte
	if call(cu.deviceUUID, uintptr(unsafe.Pointer(&id[0])), uintptr(c.device)) == nil {
		kind := "GPU"
		if s.MIG {
			kind = "MIG"
		}
		s.UUID = fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	}
	var mps int32
	if call(cu.deviceAttribute, uintptr(unsafe.Pointer(&mps)), attrMPS, uintptr(c.device)) == nil && mps != 0 {
		s.MPS, s.Threads = true, os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
		s.Memory = os.Getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
	}
	return s
}
