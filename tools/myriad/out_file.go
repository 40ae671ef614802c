package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// atomicFile is a file that is written at once or not at all: until it is whole, what has
// had its name stays as it is. A device or a pipe is written to directly.
type atomicFile struct {
	userPath  string   // as the user has it
	finalPath string   // where it goes to in the end, "" for a device
	temp      *os.File // until then, beside that
}

// createAtomicFile opens what write needs, so that what is wrong with the path is known before.
// It ends with finish or with discard.
func createAtomicFile(path string) (*atomicFile, error) {
	name, mode := path, fs.FileMode(0)
	switch old, err := os.OpenFile(path, os.O_WRONLY, 0); {
	case err == nil:
		info, err := old.Stat()
		if err == nil && !info.Mode().IsRegular() {
			return &atomicFile{userPath: path, temp: old}, nil
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
	o := &atomicFile{path, name, file}
	if mode != 0 {
		if err := file.Chmod(mode); err != nil {
			o.discard()
			return nil, err
		}
	}
	return o, nil
}

// commit gives the file its name when all of it has been written, and err is nil.
func (o *atomicFile) commit(err error) error {
	defer o.discard()
	if o.finalPath == "" {
		return cmp.Or(err, o.temp.Close())
	}
	if err == nil {
		err = o.temp.Sync()
	}
	if err = cmp.Or(err, o.temp.Close()); err == nil {
		err = os.Rename(o.temp.Name(), o.finalPath)
	}
	return err
}

// discard leaves nothing of a file that was not written.
func (o *atomicFile) discard() {
	o.temp.Close()
	if o.finalPath != "" {
		os.Remove(o.temp.Name()) // which is not there if it was written
	}
}
