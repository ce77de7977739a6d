package driver

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"grebe/compute"
)

// Error is what a call of the driver returned.
type Error struct {
	Call string // with its arguments
	Code int
	Text string // the library's name of it
}

func (e *Error) Error() string { return fmt.Sprintf("driver: %s: %s (%d)", e.Call, e.Text, e.Code) }

// Is makes an error that says that memory is used up a compute.ErrNoMemory.
func (e *Error) Is(target error) bool { return target == compute.ErrNoMemory && e.Code == outOfMemory }

// OutOfMemory reports whether err says that a GPU's memory, or pinned memory, is used up.
func OutOfMemory(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == outOfMemory
}

const (
	outOfMemory = 2
	notReady    = 600
)

// sticky are the codes after which a context does no more work.
func sticky(code int) bool {
	switch code {
	case 4, 46, 201, 214, 709, 721, 999: // driver gone, device unavailable, no context, ECC, destroyed, contained error
		return true
	}
	return code >= 700 && code <= 720 && code != 701 && code != 704 && code != 705 && code != 708 && code != 712 &&
		code != 713
}

// result makes an error of a code other than 0.
func result(s symbol, code int32, args []uintptr) error {
	if code == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(s.name)
	for i, a := range args {
		b.WriteString(map[bool]string{true: "(", false: ", "}[i == 0])
		fmt.Fprintf(&b, "%#x", a)
	}
	if len(args) > 0 {
		b.WriteString(")")
	}
	return &Error{Call: b.String(), Code: int(code), Text: errorText(s, code)}
}

func errorText(s symbol, code int32) string {
	switch {
	case hook != nil:
		return "in a test"
	case strings.HasPrefix(s.name, "cublas"):
		return "cublas status"
	case strings.HasPrefix(s.name, "nvrtc"):
		p, _, _ := purego.SyscallN(rtc.errorString.addr, uintptr(code))
		return goString(p)
	}
	var name, text uintptr
	purego.SyscallN(cu.errorName.addr, uintptr(code), uintptr(unsafe.Pointer(&name)))
	purego.SyscallN(cu.errorString.addr, uintptr(code), uintptr(unsafe.Pointer(&text)))
	return goString(name) + ", " + goString(text)
}

// pointer turns an address outside the Go heap into a pointer.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// goString copies a C string.
func goString(p uintptr) string {
	if p == 0 {
		return "?"
	}
	n := 0
	for *(*byte)(unsafe.Add(pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(pointer(p)), n))
}

// cString returns s with its end marked.
func cString(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}

// call calls a function of a library that needs no context.
//
//go:uintptrescapes
func call(s symbol, args ...uintptr) error {
	code := invoke(&s, args)
	if code == 0 {
		return nil
	}
	return result(s, code, args)
}

// Context is one GPU.
type Context struct {
	device int32
	handle uintptr
	info   Info
	lost   atomic.Pointer[Error]
}

// Info describes a GPU.
type Info struct {
	Name         string
	Arch         int // 10·major + minor: 90 is Hopper
	Processors   int // multiprocessors
	Memory       int64
	L2           int
	SharedMemory int // the most that a block may use, in bytes
	Driver       int // 1000·major + 10·minor of the newest CUDA that the driver knows
	Sharing      Sharing
}

// Count returns the number of GPUs.
func Count() (int, error) {
	if _, err := Open(); err != nil {
		return 0, err
	}
	var n int32
	err := call(cu.deviceCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// New opens GPU number gpu. The caller MUST Close it.
func New(gpu int) (*Context, error) {
	n, err := Count()
	if err != nil {
		return nil, err
	}
	if gpu < 0 || gpu >= n {
		return nil, fmt.Errorf("driver: GPU %d of %d", gpu, n)
	}
	c := &Context{}
	if err := call(cu.deviceGet, uintptr(unsafe.Pointer(&c.device)), uintptr(gpu)); err != nil {
		return nil, err
	}
	if err := c.describe(); err != nil {
		return nil, err
	}
	return c, call(cu.contextRetain, uintptr(unsafe.Pointer(&c.handle)), uintptr(c.device))
}

// Attributes of a device, as cuda.h numbers them.
const (
	attrProcessors   = 16
	attrL2           = 38
	attrMajor        = 75
	attrMinor        = 76
	attrSharedMemory = 97
)

func (c *Context) describe() error {
	var name [256]byte
	var version int32
	err := errors.Join(
		call(cu.deviceName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(c.device)),
		call(cu.deviceMemory, uintptr(unsafe.Pointer(&c.info.Memory)), uintptr(c.device)),
		call(cu.driverVersion, uintptr(unsafe.Pointer(&version))))
	c.info.Name, _, _ = strings.Cut(string(name[:]), "\x00")
	c.info.Driver = int(version)
	var major, minor int
	for _, a := range []struct {
		attr uintptr
		to   *int
	}{{attrProcessors, &c.info.Processors}, {attrL2, &c.info.L2}, {attrMajor, &major}, {attrMinor, &minor},
		{attrSharedMemory, &c.info.SharedMemory}} {
		var v int32
		err = errors.Join(err, call(cu.deviceAttribute, uintptr(unsafe.Pointer(&v)), a.attr, uintptr(c.device)))
		*a.to = int(v)
	}
	c.info.Arch = 10*major + minor
	c.info.Sharing = c.share()
	return err
}

// Info describes the GPU.
func (c *Context) Info() Info { return c.info }

// Close gives the context back; memory and modules in it are gone with the last one of its GPU.
func (c *Context) Close() error { return call(cu.contextRelease, uintptr(c.device)) }

// Enter makes the GPU current for the goroutine, which keeps its thread until Leave. It returns the
// error after which the GPU does no more work, if there was one; Leave MUST follow all the same.
func (c *Context) Enter() error {
	runtime.LockOSThread()
	return c.hot(&cu.contextSet, c.handle)
}

// Leave ends what Enter began.
func (c *Context) Leave() { runtime.UnlockOSThread() }

// Lost returns the error after which the GPU does no more work, or nil.
func (c *Context) Lost() error {
	if e := c.lost.Load(); e != nil {
		return e
	}
	return nil
}

// call calls a function of the driver and remembers an error that the context does not survive.
//
//go:uintptrescapes
func (c *Context) call(s symbol, args ...uintptr) error {
	if e := c.lost.Load(); e != nil {
		return e
	}
	code := invoke(&s, args)
	if code == 0 {
		return nil
	}
	return c.failed(s, code, args)
}

// hotArgs are reused, since a slice of arguments that reaches C lies on the heap.
var hotArgs = sync.Pool{New: func() any { return new([16]uintptr) }}

// hot is call for arguments that are no pointers into the Go heap. It allocates nothing.
func (c *Context) hot(s *symbol, args ...uintptr) error {
	code, err := c.query(s, args...)
	if err == nil && code != 0 {
		err = c.failed(*s, code, slices.Clone(args))
	}
	return err
}

// query is hot for functions that say "not ready" as well, which is no error.
func (c *Context) query(s *symbol, args ...uintptr) (int32, error) {
	if e := c.lost.Load(); e != nil {
		return 0, e
	}
	own := hotArgs.Get().(*[16]uintptr)
	n := copy(own[:], args)
	code := invoke(s, own[:n])
	hotArgs.Put(own)
	if code == 0 || code == notReady {
		return code, nil
	}
	return code, c.failed(*s, code, slices.Clone(args))
}

func (c *Context) failed(s symbol, code int32, args []uintptr) error {
	err := result(s, code, args)
	if e, ok := err.(*Error); ok && strings.HasPrefix(s.name, "cu") && !strings.HasPrefix(s.name, "cublas") &&
		sticky(e.Code) {
		c.lost.CompareAndSwap(nil, e)
	}
	return err
}

// Sync waits for everything that was started on the GPU, and for captures to end. It MUST NOT be called within one, nor
// with a lock held that one may wait for.
func (c *Context) Sync() error {
	captures.Lock()
	defer captures.Unlock()
	return c.call(cu.contextSync)
}
