// Package mounts lists this machine's mounts and removes those of a cluster.
package mounts

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is one line of the mount table.
type Mount struct {
	Point string
	Type  string
}

// List reads the mount table, oldest mount first.
func List() []Mount {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var mounts []Mount
	for _, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		// Field 5 is the mount point; the type follows the separator " - ".
		left, right, found := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		if found && len(fields) > 4 {
			mounts = append(mounts, Mount{Point: unescape(fields[4]), Type: strings.Fields(right)[0]})
		}
	}
	return mounts
}

// unescape undoes the octal escapes that the kernel writes for blanks.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// Below lists the mount points below a folder, newest first.
func Below(folder string) []string {
	var points []string
	all := List()
	for i := len(all) - 1; i >= 0; i-- {
		if strings.HasPrefix(all[i].Point, folder+"/") {
			points = append(points, all[i].Point)
		}
	}
	return points
}

// UnmountBelow removes all mounts below a folder, those on top of others included.
func UnmountBelow(folder string) error {
	for range 10 { // mounts can be stacked on one point
		points := Below(folder)
		if len(points) == 0 {
			return nil
		}
		for _, point := range points {
			_ = unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	left := Below(folder)
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("cannot unmount %s: see `findmnt` for what holds it", strings.Join(left, ", "))
}
