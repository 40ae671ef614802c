package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// outFile is a file that is written at once or not at all: until it is whole, what has
// had its name stays as it is. A device or a pipe is written to directly.
type outFile struct {
	path string   // as the user has it
	name string   // where it goes to in the end, "" for a device
	file *os.File // until then, beside that
}

// createOut opens what write needs, so that what is wrong with the path is known before.
// It ends with finish or with discard.
func createOut(path string) (*outFile, error) {
	name, mode := path, fs.FileMode(0)
	switch old, err := os.OpenFile(path, os.O_WRONLY, 0); {
	case err == nil:
		info, err := old.Stat()
		if err == nil && !info.Mode().IsRegular() {
			return &outFile{path: path, file: old}, nil
		}
		old.Close()
		if err == nil {
			name, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			return nil, err
		}
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	file, err := os.OpenFile(name+"."+rand.Text()[:8], os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	o := &outFile{path, name, file}
	if mode != 0 {
		if err := file.Chmod(mode); err != nil {
			o.discard()
			return nil, err
		}
	}
	return o, nil
}

// finish gives the file its name when all of it has been written, and err is nil.
func (o *outFile) finish(err error) error {
	defer o.discard()
	if o.name == "" {
		return cmp.Or(err, o.file.Close())
	}
	if err == nil {
		err = o.file.Sync()
	}
	if err = cmp.Or(err, o.file.Close()); err == nil {
		err = os.Rename(o.file.Name(), o.name)
	}
	return err
}

// discard leaves nothing of a file that was not written.
func (o *outFile) discard() {
	o.file.Close()
	if o.name != "" {
		os.Remove(o.file.Name()) // which is not there if it was written
	}
}
