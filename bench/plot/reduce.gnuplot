# reduce.gnuplot: GB/s in each direction by rows, one block of (rows, GB/s) for each way.
set terminal svg size 560,360 font "sans-serif,12" background "white"
set output picture
set logscale x 2
set xrange [32:524288]
set xtics nomirror ("32" 32, "256" 256, "2048" 2048, "16384" 16384, "65536" 65536, "524288" 524288)
set ytics nomirror
set border 3
set grid ytics lc rgb "#dddddd"
set yrange [0:*]
set key top left reverse Left
set xlabel "rows of all owners"
set ylabel "GB/s in each direction"
set title "Reducing fp32 states of 128 values to their owners, 2 ".gpu
plot data index 0 using 1:2 with linespoints lw 2 pt 7 ps 0.6 lc rgb "#1f6f8b" title columnheader(1), \
     data index 1 using 1:2 with linespoints lw 2 pt 7 ps 0.6 lc rgb "#d1603d" title columnheader(1), \
     data index 2 using 1:2 with linespoints lw 2 pt 7 ps 0.6 lc rgb "#888888" title columnheader(1)
