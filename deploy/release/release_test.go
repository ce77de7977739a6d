package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// printsEnv makes the test's own binary print the completions of a shell, as grebe does.
const printsEnv = "GREBE_TEST_COMPLETIONS"

func TestMain(m *testing.M) {
	if os.Getenv(printsEnv) != "" {
		fmt.Println("#", strings.Join(os.Args[1:], " "))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var commit = time.Unix(1_700_000_000, 0).UTC()

// packed packs a release of this source whose binaries are this test, once for each folder.
func packed(t *testing.T, outs ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binaries := t.TempDir()
	dir := filepath.Join(binaries, runtime.GOARCH)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"grebe", "grebe-bench"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(printsEnv, "1")
	for _, out := range outs {
		if err := run("../..", binaries, out, "v1.2.3-rc1", commit); err != nil {
			t.Fatal(err)
		}
	}
}

// A release is the same, to the bit, however often it is packed, and has what users expect.
func TestRelease(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skipf("no packages for %s", runtime.GOARCH)
	}
	outs := []string{t.TempDir(), t.TempDir()}
	packed(t, outs...)
	var sums [2][]byte
	for i, out := range outs {
		var err error
		if sums[i], err = os.ReadFile(filepath.Join(out, "SHA256SUMS")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(sums[0], sums[1]) {
		t.Errorf("two releases of the same source differ:\n%s\n%s", sums[0], sums[1])
	}
	name := "grebe-1.2.3-rc1-linux-" + runtime.GOARCH
	files := map[string][]byte{}
	for line := range strings.Lines(string(sums[0])) {
		sum, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got, err := sumOf(filepath.Join(outs[0], file))
		if err != nil || got != sum {
			t.Errorf("%s has sum %s, in SHA256SUMS %s (%v)", file, got, sum, err)
		}
		if files[file], err = os.ReadFile(filepath.Join(outs[0], file)); err != nil {
			t.Fatal(err)
		}
	}
	deb := "grebe_1.2.3~rc1_" + runtime.GOARCH + ".deb"
	want := []string{name + ".tar.gz", name + ".spdx.json", "grebe-chart-1.2.3-rc1.tgz", deb}
	if len(files) != len(want) {
		t.Errorf("%d files, want %d:\n%s", len(files), len(want), sums[0])
	}
	for _, file := range want {
		if len(files[file]) == 0 {
			t.Fatalf("no %s in\n%s", file, sums[0])
		}
	}
	archive := untar(t, files[name+".tar.gz"])
	for _, file := range []string{"bin/grebe", "bin/grebe-bench", "LICENSE", "grebe.service",
		"share/man/man1/grebe-rank.1.gz",
		"share/zsh/vendor-completions/_grebe", "share/doc/grebe/THIRD-PARTY-LICENSES"} {
		if len(archive[name+"/"+file]) == 0 {
			t.Errorf("no %s in the archive", file)
		}
	}
	if got := string(archive[name+"/share/bash-completion/completions/grebe"]); got != "# completion bash\n" {
		t.Errorf("the completions of bash are %q", got)
	}
	chart := untar(t, files["grebe-chart-1.2.3-rc1.tgz"])
	text := string(chart["grebe/Chart.yaml"])
	if !strings.Contains(text, `version: "1.2.3-rc1"`) || !strings.Contains(text, `appVersion: "v1.2.3-rc1"`) {
		t.Errorf("the chart's version in\n%s", text)
	}
	if len(chart["grebe/values.yaml"]) == 0 || len(chart["grebe/templates/node.yaml"]) == 0 ||
		chart["grebe/ci/demo.yaml"] != nil {
		t.Error("the chart lacks values or a template, or has files of its tests")
	}
	checkDeb(t, files[deb])
	checkBill(t, files[name+".spdx.json"])
}

// untar returns the files of a compressed tar. Each has the time of the commit and belongs to root.
func untar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(commit) || h.Uid != 0 || h.Uname != "" || h.Mode&0o022 != 0 {
			t.Errorf("%s: time %v, owner %d %q, mode %o", h.Name, h.ModTime, h.Uid, h.Uname, h.Mode)
		}
		if h.Typeflag == tar.TypeReg {
			if out[path.Clean(h.Name)], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// checkDeb reads a package as deb(5) describes it.
func checkDeb(t *testing.T, data []byte) {
	t.Helper()
	rest, ok := bytes.CutPrefix(data, []byte("!<arch>\n"))
	if !ok {
		t.Fatal("not an archive")
	}
	parts := map[string][]byte{}
	var order []string
	for len(rest) > 0 {
		var name string
		var when, uid, gid, mode, size int
		if _, err := fmt.Sscanf(string(rest[:58]), "%16s%12d%6d%6d%8o%10d", &name, &when, &uid, &gid, &mode,
			&size); err != nil {
			t.Fatalf("header %q: %v", rest[:60], err)
		}
		if string(rest[58:60]) != "`\n" || int64(when) != commit.Unix() {
			t.Fatalf("header %q", rest[:60])
		}
		parts[name], rest = rest[60:60+size], rest[60+size+size%2:]
		order = append(order, name)
	}
	if got := strings.Join(order, " "); got != "debian-binary control.tar.gz data.tar.gz" ||
		string(parts["debian-binary"]) != "2.0\n" {
		t.Fatalf("parts %s", got)
	}
	control, files := untar(t, parts["control.tar.gz"]), untar(t, parts["data.tar.gz"])
	if got := string(control["control"]); !strings.Contains(got,
		"\nVersion: 1.2.3~rc1\nArchitecture: "+runtime.GOARCH+"\n") {
		t.Errorf("control is\n%s", got)
	}
	if got := string(control["conffiles"]); got != "/etc/grebe/grebe.yaml\n" || len(files["etc/grebe/grebe.yaml"]) == 0 {
		t.Errorf("configuration files %q", got)
	}
	unit := string(files["usr/lib/systemd/system/grebe.service"])
	for _, want := range []string{"ExecStart=/usr/bin/grebe serve -c /etc/grebe/grebe.yaml", "User=grebe\n",
		"StateDirectory=grebe\n",
		"ProtectSystem=strict\n"} {
		if !strings.Contains(unit, want) {
			t.Errorf("no %q in the unit\n%s", want, unit)
		}
	}
	if strings.Contains(unit, "DynamicUser") || strings.Contains(unit, "/usr/local") {
		t.Errorf("the unit is that of an installation by hand:\n%s", unit)
	}
	for name := range files {
		if name != "etc/grebe/grebe.yaml" && !strings.Contains(string(control["md5sums"]), "  "+name+"\n") {
			t.Errorf("no %s in md5sums", name)
		}
	}
}

// checkBill reads a bill of materials: every package has a licence, an id of its own, and a relationship.
func checkBill(t *testing.T, data []byte) {
	t.Helper()
	var doc spdxDocument
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	related := map[string]bool{}
	for _, r := range doc.Relationships {
		related[r.RelatedSPDXElement] = true
	}
	names := map[string]bool{}
	for _, p := range doc.Packages {
		if !related[p.SPDXID] || p.LicenseDeclared == "" || p.VersionInfo == "" || names[p.Name] {
			t.Errorf("package %+v is listed twice, or lacks a licence, a version or a relationship", p)
		}
		names[p.Name] = true
		delete(related, p.SPDXID)
	}
	if !names["grebe"] || !names[toolchain] || len(related) > 0 || doc.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("packages %v, relationships to unknown ones %v, created %s", names, related, doc.CreationInfo.Created)
	}
}

func TestVersions(t *testing.T) {
	for described, want := range map[string]string{
		"v1.2.3": "1.2.3 1.2.3", "1.2.3": "1.2.3 1.2.3", "v1.2.3-rc1": "1.2.3-rc1 1.2.3~rc1",
		"v1.2.3-dirty":     "1.2.3+dirty 1.2.3+dirty",
		"v1.2.3-rc1-dirty": "1.2.3-rc1+dirty 1.2.3~rc1+dirty", "v1.2.3-4-gabc12": "1.2.3+4.gabc12 1.2.3+4.gabc12",
		"v1.2.3-4-gabc12-dirty": "1.2.3+4.gabc12.dirty 1.2.3+4.gabc12.dirty", "0123456": "0.0.0-g0123456 0.0.0~g0123456",
		"abcdef0-dirty": "0.0.0-gabcdef0.dirty 0.0.0~gabcdef0.dirty", "unknown": "", "": "", "v1.2": "", "v1.2.3 4": "",
		"v1.2.3/..": "",
	} {
		v, err := parseVersion(described)
		if want == "" {
			if err == nil {
				t.Errorf("%q: %v, want an error", described, v)
			}
			continue
		}
		if got := v.semantic + " " + v.debian; err != nil || got != want || v.described != described {
			t.Errorf("%q: %s (%v), want %s", described, got, err, want)
		}
	}
}

func TestNotice(t *testing.T) {
	got, err := readNotice("Grebe\n\nMIT License\n  a.b/c\n  d.e/f   (MIT License; parts under the Apache License " +
		"2.0)\n\n  g/h\n" +
		"BSD 2-Clause License\n  i/j   (in builds with cgo only)\nOther words\n  k/l\n")
	want := map[string]string{toolchain: "BSD-3-Clause", "a.b/c": "MIT", "d.e/f": "Apache-2.0 AND MIT",
		"i/j": "BSD-2-Clause"}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
	if _, err := readNotice("nothing"); err == nil {
		t.Error("an empty NOTICE is no error")
	}
}

// A module whose licence nobody wrote down is not shipped.
func TestUnknownLicence(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &release{licenses: map[string]string{toolchain: "BSD-3-Clause"}}
	if _, err := r.bill("amd64", self, []module{{path: "example.org/new", version: "v1.0.0"}}); err == nil {
		t.Error("no error")
	}
}

func TestManPages(t *testing.T) {
	reference, err := os.ReadFile("../../docs/reference/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := manPages(string(reference), "1.2.3", commit)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(pages), strings.Count(string(reference), "\n## grebe ")+1; got != want {
		t.Errorf("%d pages, want %d", got, want)
	}
	serve := string(pages["grebe-serve.1"])
	for _, want := range []string{".TH GREBE-SERVE 1 \"2023-11-14\"",
		".SH NAME\ngrebe\\-serve \\- Serve models over HTTP and gRPC\n",
		".SH SYNOPSIS\n.nf\ngrebe serve [flags]\n", "grebe serve \\-c grebe.yaml",
		".TP\n.B \\-c, \\-\\-config=FILE\nConfiguration file.\n"} {
		if !strings.Contains(serve, want) {
			t.Errorf("no %q in\n%s", want, serve)
		}
	}
	if _, err := manPages("# no commands", "1.2.3", commit); err == nil {
		t.Error("a reference without commands is no error")
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed: nobody else reads the pages")
	}
	for name, page := range pages {
		cmd := exec.Command(groff, "-Kutf8", "-man", "-ww", "-z", "-Tutf8")
		cmd.Stdin = bytes.NewReader(page)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestBadArguments(t *testing.T) {
	empty := t.TempDir()
	if err := run("../..", empty, t.TempDir(), "v1.2.3", commit); err == nil {
		t.Error("a folder without binaries is no error")
	}
	if err := run(empty, empty, t.TempDir(), "v1.2.3", commit); err == nil {
		t.Error("a folder without sources is no error")
	}
	if err := run("../..", empty, t.TempDir(), "latest", commit); err == nil {
		t.Error("a version that is none is no error")
	}
}
