package sim

import (
	"context"
	"strings"
	"testing"
)

// A sweep finds the rate that the SLO allows, and the page of its report needs nothing else.
func TestSweepAndPage(t *testing.T) {
	s := fleetOf(t, "hash", func(s *Scenario) {
		s.Requests, s.SLO, s.Deadline = 600, ms(60), ms(1000)
		s.Sweep.Find, s.Sweep.Digits = true, .2
	})
	rep, err := Play(t.Context(), s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Sustained == 0 || rep.Fails <= rep.Sustained || rep.Fails > 1.2*rep.Sustained {
		t.Errorf("sustained %v, fails at %v", rep.Sustained, rep.Fails)
	}
	for i, r := range rep.Runs {
		if i > 0 && r.Offered < rep.Runs[i-1].Offered {
			t.Error("the runs are not in the order of rates")
		}
		if ok := r.Within >= rep.Within; ok != (r.Offered <= rep.Sustained) {
			t.Errorf("at %.0f requests/s %.3f were answered in time, sustained is %.0f", r.Offered, r.Within, rep.Sustained)
		}
	}
	var page, text strings.Builder
	if err := rep.HTML(&page); err != nil {
		t.Fatal(err)
	}
	if err := rep.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Latency over load", "Hit shares over time", "MB per link", "<polyline", "Sustained:"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, bad := range []string{"<script", "http:", "https:", "src=", "ZgotmplZ", "NaN"} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if !strings.Contains(text.String(), "Sustained:") {
		t.Errorf("the report is\n%s", text.String())
	}
}

// A report of too few requests says so.
func TestTooFewRequests(t *testing.T) {
	for n, want := range map[int]string{enough - 1: "counted only 99 of 99 requests", enough: ""} {
		rep, err := Play(t.Context(), fleetOf(t, "none", func(s *Scenario) { s.Requests = n }), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := rep.Warning(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%d requests: %q", n, got)
		}
	}
}

// A run that is interrupted reports what it has.
func TestStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := fleetOf(t, "none", func(s *Scenario) { s.Requests = 1 << 20 })
	rep, err := Play(ctx, s, Options{Progress: func(done, _ int) {
		if done > 200 {
			cancel()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !rep.Stopped || len(rep.Runs) != 1 || rep.Runs[0].Answered == 0 || rep.Runs[0].Answered > 10000 {
		t.Errorf("stopped is %v after %d runs", rep.Stopped, len(rep.Runs))
	}
	var page strings.Builder
	if err := rep.HTML(&page); err != nil {
		t.Error(err)
	}
}
