// Command release packs built binaries for users: archives, Debian packages, the Helm chart, bills of materials and
// their checksums. It runs in the root of the source and needs Go, but no packaging tools and no network.
//
//	release BINARIES OUT VERSION SECONDS
//
// BINARIES has a folder for each architecture, amd64 or arm64, with grebe and grebe-bench in it. SECONDS is the Unix
// time that all files get, such as that of the commit. The same input gives the same bytes. OUT may hold other files of
// the release already, such as container images: SHA256SUMS lists them too.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"grebe/deploy/tree"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: release BINARIES OUT VERSION SECONDS")
		os.Exit(2)
	}
	seconds, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err == nil {
		err = run(".", os.Args[1], os.Args[2], os.Args[3], time.Unix(seconds, 0).UTC())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is what all packages of a release share.
type release struct {
	source   string // root of the source
	out      string
	version  version
	when     time.Time
	licenses map[string]string // SPDX expression of each module in NOTICE
	shared   []tree.File       // files of all architectures, below /usr
}

// run packs a release of the source for all architectures in binaries.
func run(source, binaries, out, described string, when time.Time) error {
	v, err := parseVersion(described)
	if err != nil {
		return err
	}
	r := &release{source: source, out: out, version: v, when: when}
	notice, err := os.ReadFile(filepath.Join(source, "NOTICE"))
	if err != nil {
		return err
	}
	if r.licenses, err = readNotice(string(notice)); err != nil {
		return fmt.Errorf("NOTICE: %w", err)
	}
	// the scripts of shells are the same for all architectures; this machine's binary prints them
	if r.shared, err = r.sharedFiles(filepath.Join(binaries, runtime.GOARCH, "grebe")); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	found := 0
	for _, arch := range []string{"amd64", "arm64"} {
		dir := filepath.Join(binaries, arch)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		found++
		if err := r.pack(arch, dir); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	if found == 0 {
		return fmt.Errorf("%s has no folder amd64 or arm64", binaries)
	}
	if err := r.chart(); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return writeSums(out)
}

// pack writes what is made for one architecture.
func (r *release) pack(arch, dir string) error {
	binary := filepath.Join(dir, "grebe")
	modules, err := linked(binary)
	if err != nil {
		return err
	}
	bill, err := r.bill(arch, binary, modules)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("grebe-%s-linux-%s", r.version.semantic, arch)
	if err := r.write(name+".spdx.json", bill); err != nil {
		return err
	}
	texts, err := licenseTexts(r.source, modules)
	if err != nil {
		return err
	}
	files := append([]tree.File{
		{Path: "/usr/bin/grebe", Mode: 0o755, From: binary},
		{Path: docs + "/THIRD-PARTY-LICENSES", Mode: 0o644, Data: texts},
		{Path: docs + "/sbom.spdx.json", Mode: 0o644, Data: bill},
	}, r.shared...)
	if err := r.archive(name, dir, files); err != nil {
		return err
	}
	data, err := r.deb(arch, files)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("grebe_%s_%s.deb", r.version.debian, arch), data)
}

// archive writes a tar of the files that can be unpacked anywhere, with the benchmarks beside the server.
func (r *release) archive(name, dir string, files []tree.File) error {
	moved := []tree.File{{Path: "/bin/grebe-bench", Mode: 0o755, From: filepath.Join(dir, "grebe-bench")},
		{Path: "/LICENSE", Mode: 0o644, From: filepath.Join(r.source, "LICENSE")},
		{Path: "/grebe.service", Mode: 0o644, From: filepath.Join(r.source, "deploy/grebe.service")}}
	for _, f := range files {
		f.Path = strings.TrimPrefix(f.Path, "/usr")
		moved = append(moved, f)
	}
	return r.writeTar(name+".tar.gz", name+"/", moved)
}

// chart writes the Helm chart with the release's version.
func (r *release) chart() error {
	root := filepath.Join(r.source, "deploy/helm/grebe")
	files, err := folder(root, "", func(name string) bool {
		return strings.HasPrefix(name, "ci/") || strings.HasPrefix(path.Base(name), ".")
	})
	if err != nil {
		return err
	}
	for i := range files {
		if files[i].Path != "/Chart.yaml" {
			continue
		}
		text, err := files[i].Read()
		if err != nil {
			return err
		}
		if files[i].Data, err = r.version.inChart(text); err != nil {
			return err
		}
		files[i].From = ""
	}
	return r.writeTar(fmt.Sprintf("grebe-chart-%s.tgz", r.version.semantic), "grebe/", files)
}

func (r *release) writeTar(name, prefix string, files []tree.File) error {
	data, err := tree.Tar(tree.WithFolders(files), prefix, r.when)
	if err == nil {
		data, err = tree.Gzip(data)
	}
	if err != nil {
		return err
	}
	return r.write(name, data)
}

func (r *release) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), data, 0o644)
}

// completions returns the shells' scripts that a binary prints.
func completions(binary string) ([]tree.File, error) {
	var files []tree.File
	for shell, at := range map[string]string{
		"bash": "/usr/share/bash-completion/completions/grebe",
		"zsh":  "/usr/share/zsh/vendor-completions/_grebe",
		"fish": "/usr/share/fish/vendor_completions.d/grebe.fish",
	} {
		cmd := exec.Command(binary, "completion", shell)
		cmd.Stderr = os.Stderr
		data, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s completion %s: %w", binary, shell, err)
		}
		files = append(files, tree.File{Path: at, Mode: 0o644, Data: data})
	}
	return files, nil
}

// writeSums writes SHA256SUMS of all files in a folder, as sha256sum -c reads it.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		if e.Name() == "SHA256SUMS" || !e.Type().IsRegular() {
			continue
		}
		sum, err := sumOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// sumOf returns the SHA-256 of a file in hexadecimal digits.
func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
