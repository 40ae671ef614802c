package procfs

import (
	"bufio"
	"os"
	"strings"
)

// eachLine calls do with each line of a file, of at most 64 KiB, until it returns
// false. Lines after the first most of them are not read: that is errRows.
func eachLine(path string, most int, do func(line string) (more bool)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for ; lines.Scan(); most-- {
		if most == 0 {
			return errRows
		}
		if !do(strings.TrimRight(lines.Text(), " ")) {
			return nil
		}
	}
	return lines.Err()
}

// fileSize is the size of a file or directory as stat tells it.
func fileSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
