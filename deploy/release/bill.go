package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// module is a module that is linked into a binary.
type module struct {
	path, version string
	sum           string // as in go.sum
}

// toolchain is the name of Go itself in the list of modules.
const toolchain = "std"

// linked returns the modules of a binary, Go's standard library first.
func linked(binary string) ([]module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", binary, err)
	}
	out := []module{{path: toolchain, version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, d := range info.Deps {
		if d.Replace != nil {
			return nil, fmt.Errorf("%s: module %s is replaced: a release has modules as they were published", binary, d.Path)
		}
		out = append(out, module{d.Path, d.Version, d.Sum})
	}
	return out, nil
}

// spdx are the names that NOTICE gives to licences, and SPDX's.
var spdx = []struct{ name, id string }{
	{"Apache License 2.0", "Apache-2.0"}, {"MIT License", "MIT"}, {"Mozilla Public License 2.0", "MPL-2.0"},
	{"BSD 2-Clause License", "BSD-2-Clause"}, {"BSD 3-Clause License", "BSD-3-Clause"},
}

// expression returns the licences that a text names, in SPDX's words.
func expression(text string) string {
	var ids []string
	for _, l := range spdx {
		if strings.Contains(text, l.name) {
			ids = append(ids, l.id)
		}
	}
	return strings.Join(ids, " AND ")
}

// readNotice returns the licence of each module in NOTICE: modules are indented below the name of their licence.
func readNotice(text string) (map[string]string, error) {
	out := map[string]string{toolchain: "BSD-3-Clause"}
	current := ""
	for line := range strings.Lines(text) {
		indented := strings.HasPrefix(line, "  ")
		line = strings.TrimSpace(line)
		switch {
		case !indented:
			current = ""
			if slices.ContainsFunc(spdx, func(l struct{ name, id string }) bool { return l.name == line }) {
				current = expression(line)
			}
		case current != "":
			path, remark, _ := strings.Cut(line, " ")
			out[path] = current
			if own := expression(remark); own != "" {
				out[path] = own
			}
		}
	}
	if len(out) < 2 {
		return nil, errors.New("no module is listed below the name of a licence")
	}
	return out, nil
}

type (
	spdxDocument struct {
		SPDXVersion       string             `json:"spdxVersion"`
		DataLicense       string             `json:"dataLicense"`
		SPDXID            string             `json:"SPDXID"`
		Name              string             `json:"name"`
		DocumentNamespace string             `json:"documentNamespace"`
		CreationInfo      spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Relationships     []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		Name             string          `json:"name"`
		SPDXID           string          `json:"SPDXID"`
		VersionInfo      string          `json:"versionInfo"`
		DownloadLocation string          `json:"downloadLocation"`
		FilesAnalyzed    bool            `json:"filesAnalyzed"`
		Checksums        []spdxChecksum  `json:"checksums,omitempty"`
		LicenseConcluded string          `json:"licenseConcluded"`
		LicenseDeclared  string          `json:"licenseDeclared"`
		CopyrightText    string          `json:"copyrightText"`
		ExternalRefs     []spdxReference `json:"externalRefs,omitempty"`
		Comment          string          `json:"comment,omitempty"`
	}
	spdxChecksum struct {
		Algorithm     string `json:"algorithm"`
		ChecksumValue string `json:"checksumValue"`
	}
	spdxReference struct {
		ReferenceCategory string `json:"referenceCategory"`
		ReferenceType     string `json:"referenceType"`
		ReferenceLocator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		SPDXElementID      string `json:"spdxElementId"`
		RelationshipType   string `json:"relationshipType"`
		RelatedSPDXElement string `json:"relatedSpdxElement"`
	}
)

var notInID = regexp.MustCompile(`[^0-9A-Za-z.-]+`)

// bill returns the bill of materials of a binary as SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/).
func (r *release) bill(arch, binary string, modules []module) ([]byte, error) {
	const none, self, document = "NOASSERTION", "SPDXRef-grebe", "SPDXRef-DOCUMENT"
	sum, err := sumOf(binary)
	if err != nil {
		return nil, err
	}
	name := "grebe-" + r.version.semantic + "-linux-" + arch
	doc := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: document, Name: name,
		DocumentNamespace: "https://spdx.org/spdxdocs/" + name + "-" + sum,
		CreationInfo:      spdxCreation{r.when.Format(time.RFC3339), []string{"Tool: grebe-deploy-release"}},
		Packages: []spdxPackage{{Name: "grebe", SPDXID: self, VersionInfo: r.version.semantic, DownloadLocation: none,
			Checksums: []spdxChecksum{{"SHA256", sum}}, LicenseConcluded: "Apache-2.0", LicenseDeclared: "Apache-2.0",
			CopyrightText: "Copyright 2026 The Grebe Authors"}},
		Relationships: []spdxRelationship{{document, "DESCRIBES", self}},
	}
	for _, m := range modules {
		license, ok := r.licenses[m.path]
		if !ok {
			return nil, fmt.Errorf("module %s is linked in, and NOTICE does not name its licence", m.path)
		}
		p := spdxPackage{Name: m.path, SPDXID: "SPDXRef-go-" + notInID.ReplaceAllString(m.path, "-"), VersionInfo: m.version,
			DownloadLocation: none, LicenseConcluded: none, LicenseDeclared: license, CopyrightText: none,
			ExternalRefs: []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.path + "@" + m.version}}}
		if m.sum != "" {
			p.Comment = "go.sum " + m.sum
		}
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, spdxRelationship{self, "DEPENDS_ON", p.SPDXID})
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	return append(data, '\n'), err
}

// legal are the names of files with licences and what must be kept beside them.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([._-].*)?$`)

// licenseTexts returns the licences and notices of modules, from the sources that the binary was built of.
func licenseTexts(source string, modules []module) ([]byte, error) {
	root, err := goTool(source, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{toolchain: strings.TrimSpace(root)}
	args := []string{"list", "-m", "-f", "{{.Path}}\t{{.Dir}}"}
	for _, m := range modules {
		if m.path != toolchain {
			args = append(args, m.path)
		}
	}
	list, err := goTool(source, args...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(list) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		dirs[path] = dir
	}
	var out strings.Builder
	out.WriteString("Licences and notices of what is linked into grebe. Grebe itself: Apache License 2.0.\n")
	for _, m := range modules {
		entries, err := os.ReadDir(dirs[m.path])
		if err != nil {
			return nil, fmt.Errorf("module %s: %w: run go mod download", m.path, err)
		}
		found := false
		for _, e := range entries {
			if !legal.MatchString(e.Name()) || !e.Type().IsRegular() {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dirs[m.path], e.Name()))
			if err != nil {
				return nil, err
			}
			found = true
			fmt.Fprintf(&out, "\n%s\n%s %s, %s\n\n%s\n", strings.Repeat("=", 80), m.path, m.version, e.Name(), text)
		}
		if !found {
			return nil, fmt.Errorf("module %s has no file with its licence", m.path)
		}
	}
	return []byte(out.String()), nil
}

// goTool returns what the go command prints in a folder.
func goTool(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return string(out), nil
}
