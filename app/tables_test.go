package app

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"grebe/internal/config"
)

// A store that does not answer fails no request, so a warning must report it.
func TestStoresThatDoNotAnswerAreToldOf(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for warned, addresses := range map[bool][]string{true: {"127.0.0.1:1"}, false: {"127.0.0.1:1", ln.Addr().String()}} {
		var log bytes.Buffer
		warnOfSilence(&config.Table{Name: "rows", Store: "redis", Addresses: addresses},
			slog.New(slog.NewTextHandler(&log, nil)))
		if strings.Contains(log.String(), "rows") != warned {
			t.Errorf("%q is logged of %v", log.String(), addresses)
		}
	}
}
