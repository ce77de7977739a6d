package serve

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"grebe/catalog"
)

// Changes that a catalog refuses after its disk failed are logged once and counted.
func TestRefusedChangesAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	s := newFake(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 5 {
		err := s.catalogError(fmt.Errorf("%w: no space left", catalog.ErrFailed))
		if codeOf(err) != Unavailable {
			t.Errorf("%v", err)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d lines were logged:\n%s", n, log.String())
	}
	if !strings.Contains(exposed(t, s), "grebe_catalog_refused_total 5") {
		t.Error("the refused changes are not counted")
	}
}
