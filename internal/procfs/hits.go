package procfs

import (
	"path"
)

// Hits counts how often a limit of a cgroup was met since the group was made.
type Hits struct {
	// Refused is how often something was refused, or memory had to be freed first.
	Refused int64
	// Killed is how many processes of the group were killed for want of memory.
	Killed int64
}

// ReadHits reads how often a limit was met that ReadCeilings has found. What a
// version of cgroups or a kernel does not count is 0.
func ReadHits(c Ceiling) (Hits, error) {
	dir := path.Dir(c.File)
	switch path.Base(c.File) {
	case "memory.limit_in_bytes":
		refused, err := readLimit(path.Join(dir, "memory.failcnt"))
		if err != nil {
			return Hits{}, err
		}
		killed, err := readStatLines(path.Join(dir, "memory.oom_control"), "oom_kill")
		return Hits{refused, killed[0]}, err
	case "memory.max", "memory.high":
		// Of the events high are so many that none is worth telling.
		n, err := readStatLines(path.Join(dir, "memory.events"), "max", "oom_kill")
		return Hits{n[0], n[1]}, err
	case "pids.max":
		n, err := readStatLines(path.Join(dir, "pids.events"), "max")
		return Hits{Refused: n[0]}, err
	}
	return Hits{}, nil
}

// readStatLines reads numbers of a file by their names. Without the file they are 0:
// the group at the top has none.
func readStatLines(file string, names ...string) ([]int64, error) {
	none := make([]int64, len(names))
	b, err := readFile(file)
	if err != nil {
		if Gone(err) {
			err = nil
		}
		return none, err
	}
	n, err := parseStatLines(b, names)
	if err != nil {
		return none, err
	}
	return n, nil
}
