package beam

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	grebev1 "grebe/api/grebe/v1"
)

// ErrNoData says that a data set is not there.
var ErrNoData = errors.New("the data is not there")

// dataset is a catalog with real codes, and what its test users have done before.
type dataset struct {
	name      string
	depth     int
	items     []*grebev1.Item
	histories [][]string
}

// readData reads a data set below a folder.
func readData(folder, name string) (*dataset, error) {
	d := &dataset{name: name}
	var err error
	switch name {
	case "industrial":
		err = d.industrial(filepath.Join(folder, name))
	case "beauty":
		err = d.beauty(filepath.Join(folder, name))
	default:
		return nil, fmt.Errorf("no data set %q: want industrial or beauty", name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrNoData, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	d.depth = len(d.items[0].Codes)
	return d, nil
}

// industrial is Amazon Industrial: items by number, and a test file with a history a line.
func (d *dataset) industrial(folder string) error {
	data, err := os.ReadFile(filepath.Join(folder, "Industrial_and_Scientific.index.json"))
	if err != nil {
		return err
	}
	var byID map[string][]string
	if err := json.Unmarshal(data, &byID); err != nil {
		return err
	}
	for i := range len(byID) {
		id := strconv.Itoa(i)
		if err := d.add(id, strings.Join(byID[id], "")); err != nil {
			return err
		}
	}
	f, err := os.Open(filepath.Join(folder, "Industrial_and_Scientific.test.csv"))
	if err != nil {
		return err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return err
	}
	for _, row := range rows[1:] { // the fourth column is a list of numbers
		d.histories = append(d.histories, strings.Fields(strings.NewReplacer("[", "", "]", "", ",", " ").Replace(row[3])))
	}
	return nil
}

// beauty is Amazon Beauty: a user a line, whose last item is the test's.
func (d *dataset) beauty(folder string) error {
	err := eachLine(filepath.Join(folder, "beauty_joined.tsv"), func(line string) error {
		f := strings.Split(line, "\t")
		if len(f) < 4 || f[0] == "item_id" {
			return nil
		}
		return d.add(f[0], f[3])
	})
	if err != nil {
		return err
	}
	return eachLine(filepath.Join(folder, "Beauty.txt"), func(line string) error {
		if f := strings.Fields(line); len(f) > 2 {
			d.histories = append(d.histories, f[1:len(f)-1])
		}
		return nil
	})
}

func eachLine(path string, do func(string) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if err := do(s.Text()); err != nil {
			return err
		}
	}
	return s.Err()
}

// add takes an item whose codes are written as <a_12><b_3><c_250>.
func (d *dataset) add(id, text string) error {
	it := &grebev1.Item{Id: id}
	for part := range strings.SplitSeq(strings.TrimSuffix(text, ">"), ">") {
		_, digits, _ := strings.Cut(part, "_")
		code, err := strconv.ParseUint(digits, 10, 15)
		if err != nil {
			return fmt.Errorf("item %s: codes %q: %w", id, text, err)
		}
		it.Codes = append(it.Codes, int32(code))
	}
	d.items = append(d.items, it)
	return nil
}

// sizes returns the number of codes of each level.
func (d *dataset) sizes() []int32 {
	out := make([]int32, d.depth)
	for _, it := range d.items {
		for l, c := range it.Codes {
			out[l] = max(out[l], c+1)
		}
	}
	return out
}

// paths returns the number of different codes.
func (d *dataset) paths() int {
	all := map[string]bool{}
	for _, it := range d.items {
		all[fmt.Sprint(it.Codes)] = true
	}
	return len(all)
}
