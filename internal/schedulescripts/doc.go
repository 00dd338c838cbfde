// Package schedulescripts calls the script about schedules: each tick of an entry is done once for all replicas.
package schedulescripts
