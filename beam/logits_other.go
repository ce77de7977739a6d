//go:build !amd64 || noasm

package beam

func pick() kernels { return plain }

func supported() []kernels { return []kernels{plain} }
