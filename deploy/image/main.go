// Command image writes a container image without a container runtime: an OCI image layout in a tar file, which `docker
// load`, `podman load`, `ctr images import` and `skopeo copy oci-archive:` read.
//
//	image BINARY OUT.tar NAME:TAG
//
// The image has the binary, the shared libraries that it needs from this machine, a user and folders to mount. It has
// no shell and no package manager. The same binary and libraries give the same bytes: files have no times, and nothing
// names the machine.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: image BINARY OUT.tar NAME:TAG")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes the image. After an error there is no file.
func run(binary, out, name string) error {
	files, arch, err := contents(binary)
	if err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	if err = write(f, files, arch, name); err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		os.Remove(out)
	}
	return err
}
