package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// unfinished is the folder in a report's directory where files are written before they
// get their names. The guard removes it when the lab is killed meanwhile.
const unfinished = ours + "unfinished"

// writeReports writes the book's files to a directory, each at once or not at all.
func (b *Book) writeReports(dir string) error {
	defer os.Remove(filepath.Join(dir, unfinished)) // empty
	p := b.Page()
	return errors.Join(
		writeFile(dir, "report.json", b.WriteJSON),
		writeFile(dir, "report.html", p.WriteHTML),
		writeFile(dir, "report.md", p.WriteMarkdown),
	)
}

// writeFile writes a file of a directory, whose name may have folders in it. It replaces
// one that exists; what reads the file meanwhile sees the old one or the new one.
func writeFile(dir, name string, write func(io.Writer) error) (err error) {
	folder := filepath.Join(dir, unfinished)
	path, made := filepath.Join(dir, name), filepath.Join(folder, filepath.Base(name))
	if err := errors.Join(os.MkdirAll(folder, 0o777), os.MkdirAll(filepath.Dir(path), 0o777)); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	defer os.Remove(made)
	f, err := os.Create(made)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}
