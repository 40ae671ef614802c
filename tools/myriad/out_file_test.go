package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// half writes a part of a report, and then the disk is full.
func half(w io.Writer) error {
	io.WriteString(w, "<html>")
	return syscall.ENOSPC
}

func whole(w io.Writer) error {
	_, err := io.WriteString(w, "<html></html>")
	return err
}

// A file is written as a whole or stays as it was, and nothing is left beside it.
func TestOutFile(t *testing.T) {
	for name, c := range map[string]struct {
		old, then string // none if empty
		write     func(io.Writer) error
	}{
		"new":                   {"", "<html></html>", whole},
		"old":                   {"before", "<html></html>", whole},
		"new, on a full disk":   {"", "", half},
		"old, on a full disk":   {"before", "before", half},
		"old, which a run ends": {"before", "before", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, link := filepath.Join(dir, "report.html"), filepath.Join(t.TempDir(), "link")
			if c.old != "" {
				if err := errors.Join(os.WriteFile(path, []byte(c.old), 0o604), os.Symlink(path, link)); err != nil {
					t.Fatal(err)
				}
				path, link = link, path
			}
			o, err := createOut(path)
			if err != nil {
				t.Fatal(err)
			}
			if c.write == nil {
				o.discard()
			} else if err := o.finish(c.write(o.file)); (err == nil) != (c.then == "<html></html>") {
				t.Errorf("writing: %v", err)
			}
			got, err := os.ReadFile(path)
			if string(got) != c.then || (err != nil) != (c.then == "") {
				t.Errorf("the file has %q, %v; want %q", got, err, c.then)
			}
			if info, err := os.Stat(path); c.old != "" && (err != nil || info.Mode().Perm() != 0o604) {
				t.Errorf("the file is %v, %v; want the mode that it had", info, err)
			}
			want := 1
			if c.then == "" {
				want = 0
			}
			if all, err := os.ReadDir(dir); len(all) != want {
				t.Errorf("beside it are %v, %v", all, err)
			}
		})
	}
}
