# ladder.gnuplot: three views of the rungs. Columns: rung, seconds, bytes moved, bytes resident.
set terminal svg size 1140,330 font "sans-serif,12" background "white"
set output picture
set style fill solid 0.9 noborder
set boxwidth 0.7
set style data boxes
set xtics nomirror scale 0 font ",10"
set ytics nomirror
set border 3
set grid ytics lc rgb "#dddddd"
set logscale y 10
unset key
set multiplot layout 1,3 title "Attention, one head of 128, 4096 queries and keys, fp32, one thread" font ",13"
rung_colour(row) = row == 4 ? 0x1f6f8b : row == 3 ? 0x7fb3c8 : 0xb8b8b8
set title "time, seconds"
plot data using 0:2:(rung_colour($0)):xtic(1) linecolor rgb variable, \
     '' using 0:($2 * 1.15):(sprintf("%.2f", $2)) with labels font ",10"
set title "memory traffic, MiB"
plot data using 0:($3 / 1048576):(rung_colour($0)):xtic(1) linecolor rgb variable, \
     '' using 0:($3 / 1048576 * 1.2):(sprintf("%.0f", $3 / 1048576)) with labels font ",10"
set title "resident memory besides inputs and O, MiB"
plot data using 0:($4 / 1048576):(rung_colour($0)):xtic(1) linecolor rgb variable, \
     '' using 0:($4 / 1048576 * 1.25):(sprintf("%.1f", $4 / 1048576)) with labels font ",10"
unset multiplot
