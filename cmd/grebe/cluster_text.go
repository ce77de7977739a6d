package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"grebe/cluster/status"
	"grebe/internal/human"
)

// clusterWidth is the number of columns that the text has room for.
const clusterWidth = 100

// clusterChanges is the number of changes that are shown.
const clusterChanges = 8

// clusterText describes a cluster to people.
func clusterText(s *status.Cluster) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Cluster %s, as %s sees it. Coordinator %s, routing %s.\n\n", s.Name, s.Self, s.Coordinator, s.Routing)
	heads, rows := nodeRows(s)
	if lineWidth(columns(heads, rows)) > clusterWidth { // the addresses are in the JSON too
		heads = heads[:len(heads)-1]
		for i := range rows {
			rows[i] = rows[i][:len(heads)]
		}
	}
	writeTable(&b, heads, rows, 3)
	for _, note := range clusterNotes(s) {
		fmt.Fprintf(&b, "\n%s\n", wrapped(note))
	}
	if p := s.Placement; p != nil {
		fmt.Fprintf(&b, "\nPlacement %s, epoch %d", p.Kind, p.Epoch)
		if p.Hot > 0 {
			fmt.Fprintf(&b, ", %s hot items on all nodes", count(int64(p.Hot)))
		}
		if p.Moved > 0 {
			fmt.Fprintf(&b, ", %s to be filled", human.Bytes(p.Moved))
		}
		b.WriteString("\n\n")
		heads, held := heldRows(p)
		writeTable(&b, heads, held, 1)
		if slices.ContainsFunc(p.Nodes, func(n status.Held) bool { return n.Gone }) {
			b.WriteString("\nA node that is gone keeps its share for some 30 s, so that a restart moves nothing.\n")
		}
	}
	if len(s.Transfers) > 0 {
		b.WriteString("\nBlocks of KV between nodes\n\n")
		moved := make([][]string, 0, len(s.Transfers))
		for _, t := range s.Transfers {
			row := []string{cut(t.From), cut(t.To), count(t.Blocks), human.Bytes(t.Bytes), count(t.Late), "-", "-"}
			if t.RateMB > 0 { // measured where they are received
				row[5], row[6] = fmt.Sprintf("%.0f MB/s", t.RateMB), millis(t.TripMs)
			}
			moved = append(moved, row)
		}
		writeTable(&b, []string{"from", "to", "blocks", "size", "late", "rate", "trip"}, moved, 2)
	}
	if held := shardRows(s); len(held) > 0 {
		b.WriteString("\nCached rows of item tables\n\n")
		writeTable(&b, []string{"node", "model", "shards", "a row"}, held, 2)
	}
	if len(s.Changes) > 0 {
		b.WriteString("\nLast changes\n\n")
		for _, c := range s.Changes[:min(len(s.Changes), clusterChanges)] {
			fmt.Fprintf(&b, "%s  %s  %s\n", clock(c.At), cut(c.Node), changeText(c))
		}
	}
	return b.String()
}

// heldRows returns the columns of a placement map, without sizes if none is known.
func heldRows(p *status.Placement) (heads []string, rows [][]string) {
	heads = []string{"node", "items", "size"}
	if !slices.ContainsFunc(p.Nodes, func(n status.Held) bool { return n.Bytes > 0 }) {
		heads = heads[:2]
	}
	for _, n := range p.Nodes {
		row := []string{cut(n.ID), count(int64(n.Items)), ""}
		if n.Gone {
			row[0] += " (gone)"
		}
		if n.Bytes > 0 {
			row[2] = human.Bytes(n.Bytes)
		}
		rows = append(rows, row[:len(heads)])
	}
	return heads, rows
}

// shardRows returns which nodes have cached how many shards of their models' item tables, and the time to fetch a row.
func shardRows(s *status.Cluster) (rows [][]string) {
	for i := range s.Nodes {
		for _, m := range s.Nodes[i].Models {
			if m.RowMs > 0 {
				rows = append(rows, []string{cut(s.Nodes[i].ID), cut(m.Name), fmt.Sprintf("%s of 1,024", count(int64(m.Shards))),
					fmt.Sprintf("%.1f µs", 1e3*m.RowMs)})
			}
		}
	}
	return rows
}

// nodeRows returns the columns of the nodes. The last one is the address.
func nodeRows(s *status.Cluster) (heads []string, rows [][]string) {
	heads = []string{"node", "state", "roles", "backlog", "entries", "age", "routed", "failed", "address"}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		var backlog, age float64
		entries, known, heard := 0, len(n.Models) > 0, len(n.Models) > 0
		for _, m := range n.Models {
			backlog, age = max(backlog, m.BacklogMs), max(age, m.AgeMs)
			if m.SharesWith == "" {
				entries += m.Entries
			}
			known, heard = known && m.Known, heard && m.AgeMs >= 0
		}
		row := []string{cut(n.ID), nodeState(n), strings.Join(n.Roles, ","), millis(backlog), count(int64(entries)),
			millis(age),
			count(n.Routed), count(n.Failed), n.API}
		if n.ID == s.Self {
			row[0] += " *"
		}
		if !known {
			row[4] = "unknown"
		}
		if !heard {
			row[5] = "-"
		}
		if len(n.Models) == 0 {
			row[3], row[4] = "-", "-"
		}
		rows = append(rows, row)
	}
	return heads, rows
}

func nodeState(n *status.Node) string {
	out := n.State
	if n.Drained {
		out += ",drained"
	}
	if n.Ejected {
		out += ",ejected"
	}
	if n.Refused != "" {
		out += ",refused"
	}
	return out
}

// clusterNotes says what an operator may want to act on.
func clusterNotes(s *status.Cluster) (out []string) {
	if s.Coordinator != "up" {
		out = append(out, "The coordinator does not answer. Requests are served; nodes neither join nor leave until it is "+
			"back. "+
			"`grebe doctor -c FILE` on a node tries to reach it.")
	}
	changing := map[string]bool{}
	for i := range s.Rollouts {
		if note := rolloutNote(&s.Rollouts[i]); note != "" {
			changing[s.Rollouts[i].Model] = s.Rollouts[i].State == "running"
			out = append(out, note)
		}
	}
	versions := map[string]map[string][]string{} // nodes by model and version
	keys := map[string][]string{}                // nodes by the digest of their keys
	for i := range s.Nodes {
		n := &s.Nodes[i]
		keys[n.Keys] = append(keys[n.Keys], cut(n.ID))
		for _, m := range n.Models {
			if versions[m.Name] == nil {
				versions[m.Name] = map[string][]string{}
			}
			versions[m.Name][m.Version] = append(versions[m.Name][m.Version], cut(n.ID))
		}
		if n.Refused != "" {
			out = append(out, fmt.Sprintf("%s gets nothing from %s: %s.", cut(n.ID), cut(s.Self), n.Refused))
		}
		if n.Ejected {
			out = append(out, cut(n.ID)+
				" answers slower than predicted, so it gets probes alone until it recovers. Look at its load and its log.")
		}
	}
	if len(keys) > 1 {
		var parts []string
		for _, d := range slices.Sorted(maps.Keys(keys)) {
			parts = append(parts, strings.Join(keys[d], " "))
		}
		out = append(out, "Nodes have different clients' keys: "+strings.Join(parts, "; ")+
			". Give all of them the same file auth.keys, and send SIGHUP.")
	}
	for _, model := range slices.Sorted(maps.Keys(versions)) {
		by := versions[model]
		if len(by) < 2 || changing[model] {
			continue
		}
		var parts []string
		for _, v := range slices.Sorted(maps.Keys(by)) {
			parts = append(parts, fmt.Sprintf("%.12s on %s", v, strings.Join(by[v], " ")))
		}
		out = append(out, fmt.Sprintf("Nodes have different checkpoints of model %s, and share no KV of it: %s. "+
			"Reload it on those that are behind.", model, strings.Join(parts, "; ")))
	}
	return out
}

// rolloutNote describes a change of a model's checkpoint that runs or did not end well.
func rolloutNote(r *status.Rollout) string {
	if r.State == "done" {
		return ""
	}
	var parts []string
	for _, n := range r.Nodes {
		state := n.State
		if n.Step != "" {
			state = fmt.Sprintf("%s %.0f %%", n.Step, 100*n.Progress)
		}
		parts = append(parts, cut(n.ID)+" "+state)
	}
	what := "reload"
	if r.Back {
		what = "rollback"
	}
	out := fmt.Sprintf("The %s of model %s by %s: %s. Nodes: %s.", what, r.Model, cut(r.Driver), r.State,
		strings.Join(parts, ", "))
	if r.Error != "" {
		out += " " + strings.TrimSuffix(r.Error, ".") + "."
	}
	return out
}

// wrapped breaks a text into lines.
func wrapped(text string) string {
	var b strings.Builder
	at := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case at == 0:
		case at+1+n > clusterWidth:
			b.WriteByte('\n')
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// changeText describes a change of a node's state.
func changeText(c status.Change) string {
	if c.From == "" {
		return "joined, " + c.To
	}
	return c.From + " -> " + c.To
}

// clock returns the local time of day of a time in RFC 3339.
func clock(at string) string {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return at
	}
	return t.Local().Format("15:04:05.000")
}

// cut shortens an id that would take too much of a line.
func cut(id string) string {
	const most = 20
	if utf8.RuneCountInString(id) <= most {
		return id
	}
	return string([]rune(id)[:most-1]) + "…"
}

func millis(ms float64) string {
	switch {
	case ms >= 100_000:
		return fmt.Sprintf("%.0f s", ms/1000)
	case ms >= 1000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

// count writes a number with a comma between thousands.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// columns returns the width of each column.
func columns(heads []string, rows [][]string) []int {
	out := make([]int, len(heads))
	for _, row := range append([][]string{heads}, rows...) {
		for i, c := range row {
			out[i] = max(out[i], utf8.RuneCountInString(c))
		}
	}
	return out
}

func lineWidth(widths []int) int {
	total := 2 * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	return total
}

// writeTable writes a table. The first left columns and the column "address" hold text, the others numbers.
func writeTable(b *strings.Builder, heads []string, rows [][]string, left int) {
	widths := columns(heads, rows)
	for _, row := range append([][]string{heads}, rows...) {
		var line strings.Builder
		for i, c := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			if i < left || heads[i] == "address" {
				fmt.Fprintf(&line, "%-*s", widths[i], c)
			} else {
				fmt.Fprintf(&line, "%*s", widths[i], c)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
