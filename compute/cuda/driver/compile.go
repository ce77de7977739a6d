package driver

import (
	"fmt"
	"strings"
	"unsafe"
)

// CompilerVersion returns the run-time compiler's version, such as "13.0".
func CompilerVersion() (string, error) {
	if _, err := Open(); err != nil {
		return "", err
	}
	var major, minor int32
	err := call(rtc.version, uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor)))
	return fmt.Sprintf("%d.%d", major, minor), err
}

// Compile compiles CUDA C++ to machine code. The error holds the compiler's messages.
func Compile(name, source string, options []string) ([]byte, error) {
	if _, err := Open(); err != nil {
		return nil, err
	}
	var program uintptr
	if err := call(rtc.create, uintptr(unsafe.Pointer(&program)), uintptr(unsafe.Pointer(cString(source))),
		uintptr(unsafe.Pointer(cString(name))), 0, 0, 0); err != nil {
		return nil, err
	}
	defer call(rtc.destroy, uintptr(unsafe.Pointer(&program)))
	args := make([]*byte, len(options)+1)
	for i, o := range options {
		args[i] = cString(o)
	}
	if err := call(rtc.compile, program, uintptr(len(options)), uintptr(unsafe.Pointer(&args[0]))); err != nil {
		return nil, fmt.Errorf("compile %s with %s: %w\n%s", name, strings.Join(options, " "), err, compileLog(program))
	}
	var n uintptr
	if err := call(rtc.cubinSize, program, uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, err
	}
	code := make([]byte, n+1) // never empty
	if err := call(rtc.cubin, program, uintptr(unsafe.Pointer(&code[0]))); err != nil {
		return nil, err
	}
	return code[:n], nil
}

func compileLog(program uintptr) string {
	var n uintptr
	if err := call(rtc.logSize, program, uintptr(unsafe.Pointer(&n))); err != nil {
		return err.Error()
	}
	text := make([]byte, n+1)
	if err := call(rtc.log, program, uintptr(unsafe.Pointer(&text[0]))); err != nil {
		return err.Error()
	}
	return strings.TrimRight(string(text), "\x00")
}
