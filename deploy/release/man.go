package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

var (
	section = regexp.MustCompile("(?ms)^## (grebe[ a-z0-9-]*)\n\n```text\n(.*?)\n```$")
	heading = regexp.MustCompile(`^(Examples?|Flags|Arguments|Commands):$`)
	// a flag, an argument or a command, two blanks, and its help
	entry = regexp.MustCompile(`^ {1,6}(\S.*?)(?: {2,}(\S.*))?$`)
)

// manPages returns a man page for each command of the reference, by file name, and one for grebe itself.
func manPages(reference, version string, when time.Time) (map[string][]byte, error) {
	out := map[string][]byte{}
	var all []string
	for _, m := range section.FindAllStringSubmatch(reference, -1) {
		name := strings.ReplaceAll(m[1], " ", "-")
		page, summary, err := manPage(name, m[2], version, when)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m[1], err)
		}
		out[name+".1"] = page
		all = append(all, ".TP\n.BR "+name+" (1)\n"+roff(summary))
	}
	if len(all) == 0 {
		return nil, errors.New("it has no command")
	}
	out["grebe.1"] = []byte(title("grebe", version, when) + `.SH NAME
grebe \- serve generative recommenders
.SH SYNOPSIS
.B grebe
.I command
[\fIflags\fR]
.SH DESCRIPTION
Grebe ranks candidates with a language model, generates items of a catalog, and reuses what earlier requests computed.
` + "Try it: \\fBgrebe demo\\fR.\n.SH COMMANDS\n" + strings.Join(all, "\n") + `
.SH EXIT STATUS
0 done, 1 failed, 2 wrong usage.
.SH FILES
.TP
.I /etc/grebe/grebe.yaml
The configuration of the service. See /usr/share/doc/grebe/reference/configuration.md.
.TP
.I /var/lib/grebe
What the service keeps.
`)
	return out, nil
}

func title(name, version string, when time.Time) string {
	return fmt.Sprintf(".TH %s 1 %q %q %q\n", strings.ToUpper(name), when.Format(time.DateOnly), "grebe "+version, "Grebe")
}

// manPage returns the man page of a command whose help is given, and the command in one sentence.
func manPage(name, help, version string, when time.Time) (page []byte, summary string, err error) {
	blocks := strings.Split(help, "\n\n")
	usage, ok := strings.CutPrefix(blocks[0], "Usage: ")
	if !ok || len(blocks) < 2 {
		return nil, "", errors.New("its help does not begin with the usage and what it does")
	}
	summary = strings.Join(strings.Fields(blocks[1]), " ")
	var b strings.Builder
	b.WriteString(title(name, version, when))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(strings.TrimSuffix(summary, ".")))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n.SH DESCRIPTION\n", roff(usage))
	entries := false
	for _, block := range blocks[2:] {
		first, rest, _ := strings.Cut(block, "\n")
		if m := heading.FindStringSubmatch(first); m != nil {
			fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(m[1]))
			entries = !strings.HasPrefix(m[1], "Example")
			if rest == "" {
				continue // the block after an empty line
			}
			block = rest
		}
		switch {
		case entries:
			b.WriteString(entriesOf(block))
		case strings.HasPrefix(block, "    "):
			fmt.Fprintf(&b, ".PP\n.nf\n.RS\n%s\n.RE\n.fi\n", roff(unindent(block)))
		default:
			fmt.Fprintf(&b, ".PP\n%s\n", roff(block))
		}
	}
	return []byte(b.String()), summary, nil
}

// entriesOf returns a list of flags, arguments or commands with the help of each.
func entriesOf(block string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(block, "\n") {
		m := entry.FindStringSubmatch(line)
		if m == nil { // the help goes on
			b.WriteString(roff(strings.TrimSpace(line)) + "\n")
			continue
		}
		fmt.Fprintf(&b, ".TP\n.B %s\n", roff(m[1]))
		if m[2] != "" {
			b.WriteString(roff(m[2]) + "\n")
		}
	}
	return b.String()
}

func unindent(block string) string {
	lines := strings.Split(block, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "    ")
	}
	return strings.Join(lines, "\n")
}

var special = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// roff returns a text as roff reads it: lines do not begin with a request.
func roff(text string) string {
	text = special.Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
