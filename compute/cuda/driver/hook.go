package driver

import "github.com/ebitengine/purego"

// Hook gets every call of the three libraries, for tests: the C function's name, its arguments, and a function that
// makes the call and returns its code. What it returns is taken for the call's code, so that it can have a call fail,
// or stand in for it.
type Hook func(call string, args []uintptr, real func() int32) int32

var (
	hook      Hook
	simulated bool // hook stands in for the libraries, which are not opened
)

// SetHook has h get all calls from now on, and returns how to undo that. Nothing may use the package meanwhile. With
// simulate, h stands in for the libraries and never makes a real call.
func SetHook(h Hook, simulate bool) (undo func()) {
	before, simulatedBefore := hook, simulated
	hook, simulated = h, simulate
	if simulate {
		for _, table := range []any{&cu, &rtc, &lt} {
			all(table) // which names them
		}
	}
	return func() { hook, simulated = before, simulatedBefore }
}

// invoke calls a C function.
func invoke(s *symbol, args []uintptr) int32 {
	if hook != nil {
		return hook(s.name, args, func() int32 {
			r, _, _ := purego.SyscallN(s.addr, args...)
			return int32(r)
		})
	}
	r, _, _ := purego.SyscallN(s.addr, args...)
	return int32(r)
}
