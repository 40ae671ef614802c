package procfs

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile bounds what is read of one file; the largest, /proc/cpuinfo, has about
// 1.5 KB for each CPU.
const maxFile = 8 << 20

// readFile returns the content of a file of at most maxFile bytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	return b, nil
}

// eachName calls do with each name in a directory, a batch of names in memory
// at a time, until do returns an error.
func eachName(dir string, do func(name string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readLink returns what a symbolic link points to.
func readLink(path string) (string, error) { return os.Readlink(path) }
