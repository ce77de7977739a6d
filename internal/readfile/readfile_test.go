package readfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Devices, pipes, folders and files that are too large are errors, at once.
func TestRegular(t *testing.T) {
	dir := t.TempDir()
	pipe, link, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		most int64
		want string
		says string
	}{
		{file, 5, "12345", ""},
		{file, 4, "", "at most 4 bytes"},
		{pipe, 100, "", "not a regular file"},
		{link, 100, "", "not a regular file"},
		{dir, 100, "", "not a regular file"},
		{filepath.Join(dir, "absent"), 100, "", "no such file"},
		{"/proc/self/maps", 10, "", "at most 10 bytes"}, // says that it has no bytes
	} {
		got, err := Regular(c.path, c.most)
		if string(got) != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v; want %q and %q", c.path, got, err, c.want, c.says)
		}
	}
}
