package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The Debian package is installed in an empty root, serves the demo there, keeps what its administrator wrote, and
// leaves nothing behind when it is purged.
func TestDebianPackage(t *testing.T) {
	for _, tool := range []string{"dpkg", "useradd"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("only root can install packages")
	}
	root := t.TempDir()
	for _, dir := range []string{"etc", "var/lib/dpkg/info", "var/lib/dpkg/updates"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n",
		"etc/shadow": "root:*:1::::::\n", "etc/gshadow": "root:*::\n", "var/lib/dpkg/status": ""} {
		writeFile(t, filepath.Join(root, name), text)
	}
	deb := debianPackage(t)
	// the root has no libc6 and no shell: scripts run outside of it and are told where it is
	dpkg := func(args ...string) {
		t.Helper()
		all := append([]string{"--root=" + root, "--force-script-chrootless", "--force-depends", "--log=/dev/null"}, args...)
		cmd := exec.Command("dpkg", all...)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("dpkg %v: %v\n%s", args, err, out)
		}
	}
	dpkg("--install", deb)
	if users, err := os.ReadFile(filepath.Join(root, "etc/passwd")); err != nil ||
		!strings.Contains(string(users), "\ngrebe:") {
		t.Errorf("no user grebe in\n%s(%v)", users, err)
	}
	installed := filepath.Join(root, "usr/bin/grebe")
	state := filepath.Join(root, "var/lib/grebe")
	grebe := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command(installed, args...)
		cmd.Env = []string{"HOME=" + state}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("grebe %v: %v\n%s", args, err, out)
		}
		return out
	}
	var got struct {
		Rank      rankResponse
		Recommend recommendResponse
	}
	if err := json.Unmarshal(grebe("demo", "--once", "--data", filepath.Join(state, "demo")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Rank.Results) != 5 || len(got.Recommend.Results) != 5 {
		t.Errorf("the demo ranks %d items and recommends %d, want 5 and 5", len(got.Rank.Results), len(got.Recommend.Results))
	}
	config := filepath.Join(root, "etc/grebe/grebe.yaml")
	model := filepath.Join(state, "demo/lm")
	if out := string(grebe("serve", "-c", config, "--model", model, "--print-config")); !strings.Contains(out,
		"data_dir: /var/lib/grebe #") {
		t.Errorf("the package's configuration is read as\n%s", out)
	}

	const own = "slo_ms: 70\n"
	writeFile(t, config, own)
	dpkg("--install", deb)
	if text, err := os.ReadFile(config); err != nil || string(text) != own {
		t.Errorf("a new installation changes the configuration to %q (%v)", text, err)
	}
	dpkg("--purge", "grebe")
	for _, gone := range []string{"usr", "etc/grebe", "var/lib/grebe"} {
		if _, err := os.Stat(filepath.Join(root, gone)); err == nil {
			t.Errorf("%s is left after a purge", gone)
		}
	}
}

// debianPackage packs the tests' binary and returns the package's path.
func debianPackage(t *testing.T) string {
	t.Helper()
	binaries, out := t.TempDir(), t.TempDir()
	dir := filepath.Join(binaries, runtime.GOARCH)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(dir, "grebe")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "grebe-bench"), "not part of the package")
	cmd := exec.Command("go", "run", "./deploy/release", binaries, out, "v1.2.3", "1700000000")
	cmd.Dir = "../.."
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pack: %v\n%s", err, text)
	}
	found, err := fs.Glob(os.DirFS(out), "*.deb")
	if err != nil || len(found) != 1 {
		t.Fatalf("packages %v: %v", found, err)
	}
	return filepath.Join(out, found[0])
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
