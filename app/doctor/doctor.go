// Package doctor examines a machine and a configuration. It reports what works, what is missing and what to do about
// it. Only Repair changes anything. Libraries are looked up by their files, and opened only if there is a GPU.
package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Status is the severity of a finding.
type Status string

const (
	OK    Status = "ok"    // as it should be
	Info  Status = "info"  // absent, and nothing needs it
	Warn  Status = "warn"  // works, but worse than it could
	Fail  Status = "fail"  // something needed is broken
	Fixed Status = "fixed" // was broken, and was repaired
)

// Finding is the outcome of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Report holds the findings.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Warn adds a problem that does not prevent serving.
func (r *Report) Warn(check, remedy, format string, args ...any) {
	r.add(check, Warn, remedy, format, args...)
}

// Fail adds a problem that prevents serving.
func (r *Report) Fail(check, remedy, format string, args ...any) {
	r.add(check, Fail, remedy, format, args...)
}

func (r *Report) add(check string, s Status, remedy, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{Check: check, Status: s, Detail: fmt.Sprintf(format, args...), Remedy: remedy})
}

// Failed reports whether something needed is broken.
func (r *Report) Failed() bool {
	for i := range r.Findings {
		if r.Findings[i].Status == Fail {
			return true
		}
	}
	return false
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	wide := 14
	for _, f := range r.Findings {
		wide = max(wide, min(30, len(f.Check)))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-5s %-*s %s\n", f.Status, wide, f.Check, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "%-5s %-*s -> %s\n", "", wide, "", f.Remedy)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Examine checks the machine and, with a configuration file, what the file names.
func Examine(root, file string, env []string) *Report {
	r := &Report{}
	m := machine{root: root}
	m.processor(r)
	m.cores(r)
	free := m.memory(r)
	m.hugePages(r)
	if m.gpu(r) && root == "/" {
		openGPUs(r)
	}
	examineConfig(r, file, env, free)
	return r
}
