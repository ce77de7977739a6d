package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"grebe/shop/demo"
)

// The tests of the Python client, and the examples of its README, pass against a real server.
func TestPythonClient(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	if err := exec.Command(python, "-c", "import sys; sys.exit(sys.version_info < (3, 9))").Run(); err != nil {
		t.Skip("python3 is older than 3.9, which the client needs")
	}
	r := start(t, "serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", "127.0.0.1:0",
		"--data-dir", t.TempDir(), "--admin-listen=", "--grpc-listen=", "--slo-ms", "60000")
	home, err := filepath.Abs("../../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-m", "unittest", "discover", "-v", "-s", "tests")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(home, "src"), "PYTHONDONTWRITEBYTECODE=1",
		"GREBE_TEST_SERVER="+r.http)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "skipped") || !strings.Contains(string(out), "test_examples_of_the_readme") {
		t.Errorf("some tests did not run:\n%s", out)
	}
}
