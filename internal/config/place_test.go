package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The default folder of data lies beside the configuration, wherever the server is started from.
func TestDataBesideTheConfiguration(t *testing.T) {
	name := write(t, "models: [{name: m, path: x}]")
	dir := filepath.Dir(name)
	t.Chdir(t.TempDir())
	if l, err := Load(Source{File: name}); err != nil || l.DataDir != filepath.Join(dir, "grebe-data") {
		t.Errorf("%v, %v", l, err)
	}
	if l, err := Load(Source{File: name, Env: []string{"GREBE_DATA_DIR=here"}}); err != nil || l.DataDir != "here" {
		t.Errorf("from the environment: %v, %v", l, err)
	}

	// A folder that an earlier version made in the working directory is never passed over.
	if err := os.Mkdir("grebe-data", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Source{File: name}); err == nil || !strings.Contains(err.Error(), "data_dir") {
		t.Errorf("two places: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "grebe-data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Source{File: name}); err != nil {
		t.Errorf("the one beside the configuration is there: %v", err)
	}
	t.Chdir(dir)
	if l, err := Load(Source{File: "grebe.yaml"}); err != nil || l.DataDir != "grebe-data" {
		t.Errorf("in its own folder: %v, %v", l, err)
	}
}
