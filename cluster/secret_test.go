package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord"
)

// away is a coordinator that does not answer.
type away struct{ coord.Coordinator }

func (away) Get(context.Context, string) (coord.Entry, error) {
	return coord.Entry{}, coord.ErrUnavailable
}

// While the coordinator is away, the log has one line a minute about the cluster's secret.
func TestAMissingSecretDoesNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		var log bytes.Buffer
		c := &Cluster{ctx: ctx}
		c.cfg.Coordinator, c.cfg.Log = away{}, slog.New(slog.NewTextHandler(&log, nil))
		c.findSecret()
		if n := strings.Count(log.String(), "cannot join the cluster yet"); n != 3 {
			t.Errorf("%d lines in 2.5 minutes, want 3:\n%s", n, log.String())
		}
	})
}
