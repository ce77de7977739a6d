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
	"grebe/server"
)

// deletedFile has the ids of users whom an import of an earlier version deleted while no server ran, a JSON string
// per line. The catalog records them today.
func deletedFile(dataDir string) string { return filepath.Join(dataDir, "deleted-users") }

// forgetDeleted has a server drop what is cached of those users.
func forgetDeleted(dataDir string, s *server.Server) error {
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
		line, err := lines.ReadBytes('\n') // of any length: earlier versions wrote ids unchecked
		var id string
		if json.Unmarshal(line, &id) == nil { // else empty, or cut off by a crash: the user was not deleted yet
			left = errors.Join(left, s.ForgetUser(id))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the users who were deleted: %w", err)
		}
	}
	if left != nil { // it is logged, and tried again at the next start
		return nil
	}
	return durable.Remove(f.Name())
}
