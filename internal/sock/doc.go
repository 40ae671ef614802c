// Package sock is where socket calls are made: listening, dialling, options,
// and the calls of the hot path, which go to the kernel without telling the Go
// scheduler because they cannot block.
package sock
