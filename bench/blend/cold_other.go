//go:build !linux

package blend

import "errors"

// forget cannot be told to other systems.
func forget(string) error {
	return errors.New("bench blend disk: this system's cache cannot be emptied: give a rate")
}
