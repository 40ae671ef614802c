package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// atomicFile is a file that is written completely or not at all. A device or pipe is written directly.
type atomicFile struct {
	userPath  string   // as given by the user
	finalPath string   // "" for a device
	temp      *os.File // in the same directory; commitUnlessFailed renames it
}

// createAtomicFile creates a temporary file for path, or opens path itself if it is a device or pipe. The caller must
// call commitUnlessFailed or discard.
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

// commitUnlessFailed gives the file its final name. If writeErr is not nil, it discards the file and returns writeErr.
func (o *atomicFile) commitUnlessFailed(writeErr error) error {
	defer o.discard()
	if o.finalPath == "" {
		return cmp.Or(writeErr, o.temp.Close())
	}
	if writeErr == nil {
		writeErr = o.temp.Sync()
	}
	if writeErr = cmp.Or(writeErr, o.temp.Close()); writeErr == nil {
		writeErr = os.Rename(o.temp.Name(), o.finalPath)
	}
	return writeErr
}

func (o *atomicFile) discard() {
	o.temp.Close()
	if o.finalPath != "" {
		os.Remove(o.temp.Name()) // fails after commit
	}
}
