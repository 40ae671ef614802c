package procfs

import (
	"bufio"
	"os"
	"strings"

	"golang.org/x/sys/unix"
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

// writable says whether this process may write a file.
func writable(path string) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil
}

// tasksIn counts the threads of a process by its directory of them, which has two
// links more, and tells its effective user.
func tasksIn(dir string) (user uint32, tasks int, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, 0, err
	}
	return st.Uid, int(st.Nlink) - 2, nil
}
