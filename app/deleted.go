package app

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"grebe/internal/durable"
	"grebe/serve"
)

// deletedFile holds the ids of users that an import of an earlier version deleted while no server ran, one JSON string
// per line. Current versions record them in the catalog.
func deletedFile(dataDir string) string { return filepath.Join(dataDir, "deleted-users") }

// forgetDeleted drops the KV of those users from a server.
func forgetDeleted(dataDir string, s *serve.Service) error {
	f, err := os.Open(deletedFile(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var left error
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n') // lines of any length: earlier versions did not check ids
		var id string
		if json.Unmarshal(line, &id) == nil { // else it is empty, or a crash cut it off before the user was deleted
			left = errors.Join(left, s.ForgetUser(id))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the users who were deleted: %w", err)
		}
	}
	if left != nil { // logged; the next start tries again
		return nil
	}
	return durable.Remove(f.Name())
}
