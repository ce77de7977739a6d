package drivertest

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"grebe/internal/offheap"
)

// Attributes of the simulated GPU, by cuda.h's numbers: an Ampere with few multiprocessors.
var attributes = map[uintptr]int32{16: 4, 38: 1 << 20, 75: 8, 76: 0, 97: 164 << 10}

const memoryBytes = 8 << 30

// call does what a function of the libraries does, and returns its code.
func (g *GPU) call(name string, a []uintptr) int32 {
	switch {
	case strings.HasPrefix(name, "nvrtc"):
		return g.compiler(name, a)
	case strings.HasPrefix(name, "cublasLt"):
		return g.matrix(name, a)
	case strings.HasPrefix(name, "cuMem"):
		return g.memoryCall(name, a)
	case strings.HasPrefix(name, "cuStream"), strings.HasPrefix(name, "cuEvent"), strings.HasPrefix(name, "cuGraph"):
		return g.streamCall(name, a)
	}
	switch name {
	case "cuInit", "cuCtxSetCurrent", "cuDevicePrimaryCtxRelease_v2", "cuFuncSetAttribute", "cuTensorMapEncodeTiled":
	case "cuDriverGetVersion":
		set(a[0], int32(13000))
	case "cuDeviceGetCount":
		set(a[0], int32(1))
	case "cuDeviceGet":
		set(a[0], int32(0))
	case "cuDeviceGetName":
		copy(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&a[0]))), a[1]), g.Name+"\x00")
	case "cuDeviceGetUuid_v2":
		id := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&a[0]))), 16)
		for i := range id {
			id[i] = byte(i)
		}
	case "cuDeviceGetAttribute":
		set(a[0], attributes[a[1]])
		if a[1] == 133 && g.MPS {
			set(a[0], int32(1))
		}
	case "cuDeviceTotalMem_v2":
		set(a[0], int64(memoryBytes))
	case "cuDevicePrimaryCtxRetain":
		set(a[0], uintptr(1))
	case "cuCtxSynchronize":
		g.drainAll()
	case "cuModuleLoadData":
		h := g.handle()
		g.modules[h] = decode(text(a[1]))
		set(a[0], h)
	case "cuModuleUnload":
		delete(g.modules, a[0])
	case "cuModuleGetFunction":
		h := g.handle()
		g.kernels[h] = &kernel{text(a[2]), g.modules[a[1]]}
		set(a[0], h)
	case "cuFuncGetAttribute":
		set(a[0], int32(0))
	case "cuOccupancyMaxActiveBlocksPerMultiprocessor":
		set(a[0], int32(2))
	case "cuLaunchKernelEx":
		return g.launch(a)
	default:
		g.wrong("no function %s", name)
		return invalid
	}
	return 0
}

// code is a program's machine code, which names it.
func (p *program) code() string { return p.name + "\n" + strings.Join(p.options, "\n") }

func decode(code string) *program {
	lines := strings.Split(code, "\n")
	return &program{name: lines[0], options: lines[1:]}
}

func (g *GPU) compiler(name string, a []uintptr) int32 {
	switch name {
	case "nvrtcVersion":
		set(a[0], int32(13))
		set(a[1], int32(0))
	case "nvrtcCreateProgram":
		h := g.handle()
		g.programs[h] = &program{name: text(a[2])}
		set(a[0], h)
	case "nvrtcDestroyProgram":
		delete(g.programs, get[uintptr](a[0]))
	case "nvrtcCompileProgram":
		for i := range a[1] {
			g.programs[a[0]].options = append(g.programs[a[0]].options, text(get[uintptr](a[2]+8*i)))
		}
	case "nvrtcGetProgramLogSize":
		set(a[1], uintptr(0))
	case "nvrtcGetCUBINSize":
		set(a[1], uintptr(len(g.programs[a[0]].code())+1))
	case "nvrtcGetCUBIN":
		for i, c := range []byte(g.programs[a[0]].code()) {
			set(a[1]+uintptr(i), c)
		}
	}
	return 0
}

func (g *GPU) matrix(name string, a []uintptr) int32 {
	switch what := strings.TrimPrefix(name, "cublasLt"); {
	case what == "GetVersion":
		return 130000
	case strings.HasSuffix(what, "Create"):
		h := g.handle()
		g.others[h] = strings.TrimSuffix(what, "Create") + "matrix library"
		set(a[0], h)
	case strings.HasSuffix(what, "Destroy"):
		delete(g.others, a[0])
	case what == "MatmulAlgoGetHeuristic":
		set(a[9], int32(1)) // the first answer is all zeros, which says that it is one
	case what == "Matmul":
		return g.put(a[15], op{name: "product", run: func() {}})
	}
	return 0
}

func (g *GPU) memoryCall(name string, a []uintptr) int32 {
	switch name {
	case "cuMemGetInfo_v2":
		used := 0
		for _, r := range g.memory {
			if !r.host {
				used += len(r.block.Bytes)
			}
		}
		set(a[0], uint64(memoryBytes-used))
		set(a[1], uint64(memoryBytes))
	case "cuMemAlloc_v2", "cuMemHostAlloc":
		if a[1] > memoryBytes {
			return 2
		}
		b, err := offheap.Alloc(int(a[1]))
		if err != nil {
			return 2
		}
		addr := uintptr(unsafe.Pointer(&b.Bytes[0]))
		i, _ := g.find(addr)
		g.memory = slices.Insert(g.memory, i, &region{addr, b, name == "cuMemHostAlloc"})
		set(a[0], addr)
	case "cuMemFree_v2", "cuMemFreeHost":
		g.drainAll()
		i, ok := g.find(a[0])
		if !ok {
			g.wrong("%#x freed, which is no memory", a[0])
			return invalid
		}
		g.memory[i].block.Free()
		g.memory = slices.Delete(g.memory, i, i+1)
	case "cuMemcpyHtoD_v2":
		to := g.Bytes(uint64(a[0]), int(a[2]))
		if to == nil {
			return invalid
		}
		copy(to, unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&a[1]))), a[2]))
	case "cuMemcpyDtoH_v2":
		g.drain(g.streams[0], len(g.streams[0].ops))
		from := g.Bytes(uint64(a[1]), int(a[2]))
		if from == nil {
			return invalid
		}
		copy(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&a[0]))), a[2]), from)
	case "cuMemcpyAsync":
		if !g.known(a[0], a[2]) || !g.known(a[1], a[2]) {
			return invalid
		}
		return g.put(a[3], g.copyOp(a[0], a[1], a[2]))
	case "cuMemsetD8Async", "cuMemsetD32Async":
		n := a[2]
		if name == "cuMemsetD32Async" {
			n *= 4
		}
		if !g.known(a[0], n) {
			return invalid
		}
		to, v, wide := a[0], a[1], name == "cuMemsetD32Async"
		return g.put(a[3], op{name: "fill", run: func() {
			b := g.Bytes(uint64(to), int(n))
			if i, whole := g.find(to); v == 0 && whole && len(g.memory[i].block.Bytes) == len(b) {
				g.memory[i].block.Discard()
				return
			}
			for i := range b {
				if b[i] = byte(v); wide {
					b[i] = byte(v >> (8 * (i % 4)))
				}
			}
		}})
	default:
		g.wrong("no function %s", name)
		return invalid
	}
	return 0
}

func (g *GPU) streamCall(name string, a []uintptr) int32 {
	switch name {
	case "cuStreamCreate", "cuStreamCreateWithPriority":
		h := g.handle()
		g.streams[h] = &stream{}
		set(a[0], h)
	case "cuStreamDestroy_v2":
		s := g.streams[a[0]]
		g.drain(s, len(s.ops))
		delete(g.streams, a[0])
	case "cuStreamSynchronize":
		s := g.streams[a[0]]
		if s.captures != nil {
			g.wrong("a wait for a stream that is captured")
			return 900
		}
		g.drain(s, len(s.ops))
	case "cuStreamWaitEvent":
		return g.put(a[0], op{name: "wait", wait: a[1]})
	case "cuStreamBeginCapture_v2":
		g.streams[a[0]].captures = &graph{}
	case "cuStreamEndCapture":
		h := g.handle()
		g.graphs[h] = g.streams[a[0]].captures
		g.streams[a[0]].captures = nil
		set(a[1], h)
	case "cuGraphInstantiateWithFlags":
		h := g.handle()
		g.graphs[h] = g.graphs[a[1]]
		set(a[0], h)
	case "cuGraphDestroy", "cuGraphExecDestroy":
		delete(g.graphs, a[0])
	case "cuGraphLaunch":
		for _, o := range g.graphs[a[0]].ops {
			if code := g.put(a[1], o); code != 0 {
				return code
			}
		}
	case "cuEventCreate":
		h := g.handle()
		g.events[h] = &event{}
		set(a[0], h)
	case "cuEventDestroy_v2":
		delete(g.events, a[0])
	case "cuEventRecord", "cuEventRecordWithFlags":
		return g.put(a[1], op{name: "record", record: a[0]})
	case "cuEventSynchronize", "cuEventQuery":
		if m := g.events[a[0]].last; m != nil {
			g.drain(m.s, m.at)
		}
	case "cuEventElapsedTime":
		set(a[0], float32(1))
	default:
		g.wrong("no function %s", name)
		return invalid
	}
	return 0
}

// launch puts a kernel into a stream, with its arguments as they are.
func (g *GPU) launch(a []uintptr) int32 {
	k := g.kernels[a[1]]
	if k == nil {
		g.wrong("no kernel %#x", a[1])
		return badHandle
	}
	l := &Launch{Name: k.name, Defines: map[string]string{}}
	for _, o := range k.of.options {
		if key, value, ok := strings.Cut(strings.TrimPrefix(o, "-D"), "="); ok && strings.HasPrefix(o, "-D") {
			l.Defines[key] = value
		}
	}
	for i := range l.Grid {
		l.Grid[i] = int(get[uint32](a[0] + 4*uintptr(i)))
	}
	for p := a[2]; get[uintptr](p) != 0 && len(l.Args) < 32; p += 8 {
		l.Args = append(l.Args, get[uint64](get[uintptr](p)))
	}
	return g.put(uintptr(get[uint64](a[0]+32)), op{name: k.name, run: func() {
		if f := g.Kernels[k.name]; f != nil {
			f(l)
		}
	}})
}

func (l *Launch) String() string { return fmt.Sprintf("%s%x", l.Name, l.Args) }
