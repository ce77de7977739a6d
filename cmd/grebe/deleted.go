package main

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

// deletedFile has the ids of users who were deleted while no server ran, a JSON string per line: what is cached of them is dropped
// at the next start, since only a server can find it.
func deletedFile(dataDir string) string { return filepath.Join(dataDir, "deleted-users") }

// noteDeleted adds users to that file, durably, before they are deleted.
func noteDeleted(dataDir string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	f, err := os.OpenFile(deletedFile(dataDir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	lines := []byte{'\n'} // what was cut off by a crash before ends here
	for _, id := range ids {
		line, err := json.Marshal(id)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		lines = append(append(lines, line...), '\n')
	}
	_, err = f.Write(lines)
	return errors.Join(err, f.Sync(), f.Close(), durable.SyncDir(dataDir))
}

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
	return os.Remove(f.Name())
}
